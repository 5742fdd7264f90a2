//! The opcodes of pickle protocols 0 to 5, by the names that CPython's `pickletools` gives them.

macro_rules! opcodes {
    ($($name:ident = $byte:literal)+) => {
        $(pub(crate) const $name: u8 = $byte;)+
    };
}

opcodes! {
    // Protocol 0.
    MARK = b'('
    STOP = b'.'
    POP = b'0'
    DUP = b'2'
    FLOAT = b'F'
    INT = b'I'
    LONG = b'L'
    NONE = b'N'
    PERSID = b'P'
    REDUCE = b'R'
    STRING = b'S'
    UNICODE = b'V'
    APPEND = b'a'
    BUILD = b'b'
    GLOBAL = b'c'
    DICT = b'd'
    GET = b'g'
    INST = b'i'
    LIST = b'l'
    PUT = b'p'
    SETITEM = b's'
    TUPLE = b't'
    // Protocol 1.
    POP_MARK = b'1'
    BINFLOAT = b'G'
    BININT = b'J'
    BININT1 = b'K'
    BININT2 = b'M'
    BINPERSID = b'Q'
    BINSTRING = b'T'
    SHORT_BINSTRING = b'U'
    BINUNICODE = b'X'
    EMPTY_LIST = b']'
    APPENDS = b'e'
    BINGET = b'h'
    LONG_BINGET = b'j'
    OBJ = b'o'
    BINPUT = b'q'
    LONG_BINPUT = b'r'
    EMPTY_TUPLE = b')'
    SETITEMS = b'u'
    EMPTY_DICT = b'}'
    // Protocol 2.
    PROTO = 0x80
    NEWOBJ = 0x81
    EXT1 = 0x82
    EXT2 = 0x83
    EXT4 = 0x84
    TUPLE1 = 0x85
    TUPLE2 = 0x86
    TUPLE3 = 0x87
    NEWTRUE = 0x88
    NEWFALSE = 0x89
    LONG1 = 0x8a
    LONG4 = 0x8b
    // Protocol 3.
    BINBYTES = b'B'
    SHORT_BINBYTES = b'C'
    // Protocol 4.
    SHORT_BINUNICODE = 0x8c
    BINUNICODE8 = 0x8d
    BINBYTES8 = 0x8e
    EMPTY_SET = 0x8f
    ADDITEMS = 0x90
    FROZENSET = 0x91
    NEWOBJ_EX = 0x92
    STACK_GLOBAL = 0x93
    MEMOIZE = 0x94
    FRAME = 0x95
    // Protocol 5.
    BYTEARRAY8 = 0x96
    NEXT_BUFFER = 0x97
    READONLY_BUFFER = 0x98
}
