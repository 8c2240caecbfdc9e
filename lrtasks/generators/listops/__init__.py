"""ListOps expressions: their tokens and values, the law of their lengths, and sampling under that law."""
