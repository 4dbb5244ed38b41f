"""The command line of training, one module per family of commands; each imports what it needs when it runs,
so that help is quick.
"""
