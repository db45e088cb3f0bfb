#!/usr/bin/env python3
"""The library never prints, exits or aborts: no object of our archives may refer to what does.

Usage: symbols.py NM ARCHIVE... Prints one line per breach and fails if there is any.
"""
import re
import subprocess
import sys

# Undefined symbols that would print to the terminal or end the process.
FORBIDDEN = re.compile(
    r"^(exit|_exit|_Exit|quick_exit|abort|std::terminate\(\)|raise|kill|"
    r"printf|vprintf|puts|putchar|perror|__printf_chk|__vprintf_chk|"
    r"fprintf|vfprintf|fputs|fputc|putc|fwrite|__fprintf_chk|__vfprintf_chk|"
    r"stdout|stderr|std::cout|std::cerr|std::clog|fmt::v\d+::vprint\(.*)(@.*)?$")
# Symbol -> objects that may refer to it, with the reason.
ALLOWED = {
    # C++: an exception that leaves a noexcept function, as in every program.
    "std::terminate()": re.compile(r".*"),
}


def undefined(nm, archive):
    """(object, symbol) pairs."""
    listing = subprocess.run([nm, "--undefined-only", "--demangle", "--format=posix", archive],
                             check=True, capture_output=True, text=True).stdout
    current = ""
    for line in listing.splitlines():
        if line.endswith(":"):
            current = line[:-1]
        elif line.strip():
            yield current, re.sub(r" [Uwv]\s*$", "", line).strip()


def main():
    assert FORBIDDEN.match("abort") and FORBIDDEN.match("stderr@GLIBC_2.2.5") and not FORBIDDEN.match("snprintf")
    nm, *archives = sys.argv[1:]
    found, seen = [], 0
    for archive in archives:
        for where, symbol in undefined(nm, archive):
            seen += 1
            match = FORBIDDEN.match(symbol)
            if match and not (match[1] in ALLOWED and ALLOWED[match[1]].match(where)):
                found.append(f"{where}: refers to {symbol}; the library returns errors instead")
    assert seen > 100, f"only {seen} undefined symbols read from {archives}"
    print("\n".join(found) if found else f"{len(archives)} archives keep the rule")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
