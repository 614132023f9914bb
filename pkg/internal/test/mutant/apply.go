package mutant

import (
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/scanner"
	gotoken "go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// token is a token of Go source, without its position in the line.
type token struct {
	kind       gotoken.Token
	text       string
	start, end int // offsets in the source
}

// isSame reports whether two tokens have the same text.
func (t token) isSame(o token) bool { return t.kind == o.kind && t.text == o.text }

// tokensOf returns the tokens of a source or of a part of one. It omits comments, and semicolons that are not written.
func tokensOf(source []byte) (list []token) {
	files := gotoken.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))

	var s scanner.Scanner
	s.Init(file, source, func(gotoken.Position, string) {}, 0)
	for {
		pos, kind, text := s.Scan()
		if kind == gotoken.EOF {
			return list
		}
		if kind == gotoken.SEMICOLON && text == "\n" {
			continue
		}

		if text == "" {
			text = kind.String()
		}

		start := file.Offset(pos)
		list = append(list, token{kind, text, start, start + len(text)})
	}
}

// sourceFile is a file of the product, with the changes of mutants.
type sourceFile struct {
	path    string
	source  []byte
	tokens  []token
	changes []change
}

// change replaces a part of a file by a text.
type change struct {
	mutant     string
	start, end int // offsets in the source
	text       string
}

// patchedFiles returns the contents of all files that the mutants change or add, by path.
func patchedFiles(root string, all []Mutant) (map[string][]byte, error) {
	tree := map[string][]*sourceFile{} // by directory, with those below it
	added := map[string][]string{}     // declarations by package directory
	packages := map[string]bool{}      // directories that need the function mutant
	changed := map[string]*sourceFile{}
	var failed []error

	for _, m := range all {
		dir := "" // the package of the last hunk
		for _, h := range m.hunks {
			if h.dir == declarations {
				added[dir] = append(added[dir], h.added...)
				continue
			}

			if tree[h.dir] == nil {
				files, err := readTree(root, h.dir)
				if err != nil {
					return nil, err
				}
				tree[h.dir] = files
			}

			f, err := h.apply(tree[h.dir], changed)
			if err != nil {
				failed = append(failed, fmt.Errorf("mutant %s: %w", m.Name, err))
				continue
			}

			if dir, err = filepath.Rel(root, filepath.Dir(f.path)); err != nil {
				return nil, err
			}
			packages[dir] = true
		}
	}

	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}

	files := map[string][]byte{}
	for path, f := range changed {
		patched, err := f.patched()
		if err != nil {
			return nil, err
		}
		files[path] = patched
	}

	for dir := range packages {
		text, err := helperFile(root, dir, added[dir])
		if err != nil {
			return nil, err
		}
		files[filepath.Join(root, dir, helperName)] = text
	}

	return files, nil
}

// readTree reads the Go files of a directory and of those below it, without tests.
func readTree(root, dir string) (files []*sourceFile, err error) {
	err = filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}

		source, err := os.ReadFile(path)
		files = append(files, &sourceFile{path: path, source: source, tokens: tokensOf(source)})

		return err
	})

	return files, err
}

// apply finds the place of the hunk in the files, and adds the changes to the file there, which it returns. The place must
// occur exactly once.
func (h *hunk) apply(files []*sourceFile, changed map[string]*sourceFile) (*sourceFile, error) {
	var found *sourceFile
	at := 0
	for _, f := range files {
		for i := range f.tokens {
			if len(f.tokens)-i < len(h.old) || !slices.EqualFunc(f.tokens[i:i+len(h.old)], h.old, token.isSame) {
				continue
			}
			if found != nil {
				return nil, fmt.Errorf("the place %s occurs in %s and in %s", h, found.path, f.path)
			}
			found, at = f, i
		}
	}

	if found == nil {
		return nil, fmt.Errorf("the place %s does not occur below %s", h, h.dir)
	}

	if other := changed[found.path]; other != nil { // read for another directory
		found = other
	}
	changed[found.path] = found

	place := found.tokens[at : at+len(h.old)]
	for _, e := range h.edits {
		c := change{mutant: h.mutant, text: strings.TrimSuffix(e.text, "\n")}
		switch {
		case e.from < e.until:
			c.start, c.end = place[e.from].start, place[e.until-1].end
		case e.from > 0:
			c.start, c.text = place[e.from-1].end, "\n"+c.text
			c.end = c.start
		default:
			c.start, c.text = place[0].start, c.text+"\n"
			c.end = c.start
		}
		found.changes = append(found.changes, c)
	}

	return found, nil
}

// String returns the beginning of the place.
func (h *hunk) String() string {
	var words []string
	for _, t := range h.old {
		words = append(words, t.text)
	}

	text := strings.Join(words, " ")

	return fmt.Sprintf("%.80q", text)
}

// patched returns the file with all changes.
func (f *sourceFile) patched() ([]byte, error) {
	slices.SortStableFunc(f.changes, func(a, b change) int { return a.start - b.start })

	var out bytes.Buffer
	at, before := 0, ""
	for _, c := range f.changes {
		if c.start < at {
			return nil, fmt.Errorf("mutants %s and %s change the same place of %s", before, c.mutant, f.path)
		}

		out.Write(f.source[at:c.start])
		out.WriteString(c.text)
		at, before = c.end, c.mutant
	}

	out.Write(f.source[at:])

	return out.Bytes(), nil
}

// helperName is the name of the file that the overlay adds to each patched package.
const helperName = "mutants_overlay.go"

// helperFile returns the file that the overlay adds to a package: the function mutant, and declarations of mutants.
func helperFile(root, dir string, added []string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s contains no package", dir)
	}

	source, err := parser.ParseFile(gotoken.NewFileSet(), files[0], nil, parser.PackageClauseOnly)
	if err != nil {
		return nil, err
	}

	imports := map[string]bool{`import "os"`: true}
	var declarations []string
	for _, line := range added {
		if strings.HasPrefix(line, "import ") {
			imports[line] = true
		} else {
			declarations = append(declarations, line)
		}
	}

	var out bytes.Buffer
	fmt.Fprintf(&out, "package %s\n\n", strings.TrimSuffix(source.Name.Name, "_test"))
	for _, line := range slices.Sorted(maps.Keys(imports)) {
		fmt.Fprintln(&out, line)
	}

	fmt.Fprintf(&out, "\nfunc mutant(name string) bool { return os.Getenv(%q) == name }\n\n%s\n", Variable, strings.Join(declarations, "\n"))

	return out.Bytes(), nil
}
