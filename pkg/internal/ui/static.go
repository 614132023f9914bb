package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// htmx.min.js and hx-sse.min.js are htmx 4.0.1 and its extension for server-sent events, from the npm package htmx.org.
//
//go:embed static templates
var embedded embed.FS

// scripts are the files of the one script that pages load, in order: htmx initializes itself after the script has run,
// and must have its extension by then.
var scripts = []string{"htmx.min.js", "hx-sse.min.js", "app.js", "drafts.js", "output.js"}

// scriptName is the name of the script that contains them.
const scriptName = "carillon.js"

// contentTypes are the types of the static files that are served, by extension.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// staticFiles are the files that pages refer to. Their names contain a hash of their content, so that browsers may keep
// them for ever.
type staticFiles struct {
	paths map[string]string      // by name
	files map[string]*staticFile // by name with hash
}

type staticFile struct {
	contentType   string
	plain, zipped []byte
}

// newStaticFiles reads and compresses the files.
func newStaticFiles(fsys fs.FS) (*staticFiles, error) {
	s := &staticFiles{paths: map[string]string{}, files: map[string]*staticFile{}}

	var script bytes.Buffer
	for _, name := range scripts {
		b, err := fs.ReadFile(fsys, "static/"+name)
		if err != nil {
			return nil, err
		}
		script.Write(bytes.TrimRight(b, "\n"))
		script.WriteString("\n;\n")
	}
	if err := s.add(scriptName, script.Bytes()); err != nil {
		return nil, err
	}

	names, err := fs.Glob(fsys, "static/*")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		ext := path.Ext(name)
		if contentTypes[ext] == "" || ext == ".js" {
			continue
		}

		b, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		if err := s.add(path.Base(name), b); err != nil {
			return nil, err
		}
	}

	return s, nil
}

// add adds a file.
func (s *staticFiles) add(name string, content []byte) error {
	ext := path.Ext(name)
	f := &staticFile{contentType: contentTypes[ext], plain: content}

	var zipped bytes.Buffer
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(content); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	f.zipped = zipped.Bytes()

	sum := sha256.Sum256(content)
	hashed := fmt.Sprintf("%s-%s%s", strings.TrimSuffix(name, ext), hex.EncodeToString(sum[:6]), ext)
	s.paths[name], s.files[hashed] = "/ui/static/"+hashed, f

	return nil
}

// path returns the path of a file, for templates.
func (s *staticFiles) path(name string) (string, error) {
	p, ok := s.paths[name]
	if !ok {
		return "", fmt.Errorf("there is no static file %q", name)
	}
	return p, nil
}

// serve serves a file by its name with the hash.
func (s *staticFiles) serve(w http.ResponseWriter, r *http.Request) {
	f, ok := s.files[r.PathValue("file")]
	if !ok {
		http.NotFound(w, r)
		return
	}

	h := w.Header()
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Content-Type", f.contentType)
	h.Set("Vary", "Accept-Encoding")

	b := f.plain
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		b = f.zipped
	}

	h.Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // an error means that the browser has gone
}

// acceptsGzip reports whether an answer may be compressed.
func acceptsGzip(r *http.Request) bool {
	for _, part := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return strings.ReplaceAll(weight, " ", "") != "q=0"
		}
	}
	return false
}
