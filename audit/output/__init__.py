"""What an audit is printed as: text for people, json for scripts, sarif for code hosts, html for reading at leisure."""

FORMATS = ("text", "json", "sarif", "html")
