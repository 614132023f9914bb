// Package manifest reads tasks from files that people write: YAML or JSON, one task or many, in one document or
// several.
//
// It is strict where a mistake would otherwise go unnoticed, and every error names the file, the line and the
// column. It rejects unknown fields, duplicate keys, anchors and aliases (which can expand without limit), tags,
// merge keys, and numbers that YAML parsers interpret differently. It accepts and ignores what Carillon itself adds
// to a task when it shows one (uid, revision, next, …), so that the output of "task get -o yaml" can be applied
// again.
//
// Files with one JSON object in each line do not have to be read as a whole: ReadJSONLines streams them, and an invalid
// line does not affect the others.
//
// Only Files, Load and ReadJSONLines do I/O. The size of a document is limited before it is passed to the parser, because
// the parser's time grows with the square of some documents' size.
package manifest
