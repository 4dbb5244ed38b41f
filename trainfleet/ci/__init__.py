"""What a CI job needs beyond the other commands: applying a reviewed plan, approvals, publishing."""
