package output

// The output formats. A command that supports only some of them is passed to factory.LimitFormats.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatJSONL = "jsonl"
	FormatYAML  = "yaml"
	FormatName  = "name"
)

// Formats contains all output formats.
var Formats = []string{FormatTable, FormatWide, FormatJSON, FormatJSONL, FormatYAML, FormatName}
