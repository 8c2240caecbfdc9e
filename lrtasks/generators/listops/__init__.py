"""ListOps expressions: their tokens and values, and sampling them within limits."""
