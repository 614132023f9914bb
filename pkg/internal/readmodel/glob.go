package readmodel

import (
	"path"
	"strings"
)

// Glob is a compiled pattern of path.Match for names of tasks and namespaces, which are ASCII. It matches several times as
// fast, and allocates nothing.
type Glob struct {
	pattern string

	// chunks are the texts between the stars of the pattern, in which a ? stands for any byte. They are nil for patterns with
	// classes or escapes, for which path.Match is used.
	chunks []string
	// namespace is the pattern before the slash, if the pattern has one. chunks are about what follows the slash.
	namespace *Glob
}

// CompileGlob compiles a pattern, which must be valid.
func CompileGlob(pattern string) Glob {
	g := Glob{pattern: pattern}
	if strings.ContainsAny(pattern, `[\`) || strings.Count(pattern, "/") > 1 {
		return g
	}

	if namespace, name, in := strings.Cut(pattern, "/"); in {
		before := CompileGlob(namespace)
		g.namespace, pattern = &before, name
	}

	g.chunks = strings.Split(pattern, "*")

	return g
}

// Match reports whether the whole text matches. No star and no ? matches a slash.
func (g *Glob) Match(text string) bool {
	if g.chunks == nil {
		ok, _ := path.Match(g.pattern, text)
		return ok
	}

	if g.namespace != nil {
		namespace, name, in := strings.Cut(text, "/")
		if !in || !g.namespace.Match(namespace) {
			return false
		}
		text = name
	}

	return strings.IndexByte(text, '/') < 0 && matchChunks(g.chunks, text)
}

// matchChunks reports whether a text consists of the chunks, in order, with anything between them.
func matchChunks(chunks []string, text string) bool {
	first, last := chunks[0], chunks[len(chunks)-1]
	if len(chunks) == 1 {
		return len(text) == len(first) && beginsWith(text, first)
	}

	if len(text) < len(first)+len(last) || !beginsWith(text, first) || !beginsWith(text[len(text)-len(last):], last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]

	// If the earliest place of a chunk leaves too little for the next ones, a later place does as well.
	for _, chunk := range chunks[1 : len(chunks)-1] {
		at := indexChunk(text, chunk)
		if at < 0 {
			return false
		}
		text = text[at+len(chunk):]
	}

	return true
}

// indexChunk returns the first place of a chunk in a text, or -1.
func indexChunk(text, chunk string) int {
	if strings.IndexByte(chunk, '?') < 0 {
		return strings.Index(text, chunk)
	}

	for at := 0; at+len(chunk) <= len(text); at++ {
		if beginsWith(text[at:], chunk) {
			return at
		}
	}

	return -1
}

// beginsWith reports whether a text, which is at least as long as the chunk, begins with it.
func beginsWith(text, chunk string) bool {
	for i := range len(chunk) {
		if chunk[i] != text[i] && chunk[i] != '?' {
			return false
		}
	}

	return true
}

// compileGlobs compiles patterns.
func compileGlobs(patterns []string) []Glob {
	list := make([]Glob, len(patterns))
	for i, p := range patterns {
		list[i] = CompileGlob(p)
	}

	return list
}

// MatchesAny reports whether a text matches one of the patterns.
func MatchesAny(globs []Glob, text string) bool {
	for i := range globs {
		if globs[i].Match(text) {
			return true
		}
	}

	return false
}
