// Package manifest reads tasks from files as people write them: YAML or JSON,
// one task or many, in one document or several.
//
// It is strict where a mistake would otherwise pass unseen, and every error
// names the file, the line and the column: unknown fields, keys that stand
// twice, anchors and aliases (which may explode), tags, merge keys, numbers
// that YAML readers disagree about. What Carillon itself adds to a task when it
// is shown (uid, revision, next, …) is accepted and ignored, so that the output
// of "task get -o yaml" can be applied again.
//
// Files with one JSON object in each line need not be read as a whole: Lines
// streams them, and a line that is wrong is wrong alone.
//
// It does no I/O beside Files, Load and Lines. The work for one document is bounded before the
// parser sees it, because the parser's time grows with the square of some
// documents' size.
package manifest
