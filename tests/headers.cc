// The program that compiles the headers of the tests does nothing.
int main() {}
