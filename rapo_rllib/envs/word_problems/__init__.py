"""``rapo/word_problems``: generated grade-school word problems, with an expert that solves them."""
