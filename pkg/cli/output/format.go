package output

// The output formats. A command that has fewer than all says so with only.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatJSONL = "jsonl"
	FormatYAML  = "yaml"
	FormatName  = "name"
)

// Formats are all output formats.
var Formats = []string{FormatTable, FormatWide, FormatJSON, FormatJSONL, FormatYAML, FormatName}
