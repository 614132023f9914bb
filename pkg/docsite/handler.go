package docsite

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Handler serves the site below a path. It keeps the files compressed, and renders them at the first request, once.
type Handler struct {
	base   string
	render func() (map[string]served, error)
}

// served is a file of the site, compressed.
type served struct {
	contentType, tag string
	zipped           []byte
}

// NewHandler returns a handler for the paths from base on, such as /docs. It reads nothing yet.
func NewHandler(base string, files fs.FS, version string) *Handler {
	return &Handler{base, sync.OnceValues(func() (map[string]served, error) { return compressSite(files, version) })}
}

// compressSite renders and compresses the site.
func compressSite(files fs.FS, version string) (map[string]served, error) {
	site, err := Render(files, version)
	if err != nil {
		return nil, err
	}

	all := map[string]served{}
	for name, content := range site {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(content); err != nil {
			return nil, err
		}
		if err := z.Close(); err != nil {
			return nil, err
		}

		sum := sha256.Sum256(content)
		all[name] = served{mime.TypeByExtension(path.Ext(name)), hex.EncodeToString(sum[:8]), b.Bytes()}
	}

	return all, nil
}

// Serves reports whether a path is one of the site.
func (h *Handler) Serves(p string) bool { return p == h.base || strings.HasPrefix(p, h.base+"/") }

// ServeHTTP serves a file of the site. A request costs the node no more than sending the file.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the manual can only be read", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == h.base { // links are relative to what follows it
		http.Redirect(w, r, h.base+"/", http.StatusSeeOther)
		return
	}

	site, err := h.render()
	if err != nil {
		http.Error(w, "the manual cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}

	name := strings.TrimPrefix(r.URL.Path, h.base+"/")
	if name == "" {
		name = "index.html"
	}
	f, ok := site[name]
	if !ok {
		http.Error(w, "the manual has no such page; it begins at "+h.base, http.StatusNotFound)
		return
	}

	f.send(w, r)
}

// send answers with the file, or 304 if the client has it. Few clients do not accept gzip, so for these it is decompressed.
func (f served) send(w http.ResponseWriter, r *http.Request) {
	zipped := strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	tag := `"` + f.tag + `"`
	if zipped {
		tag = `"` + f.tag + `-gzip"`
	}

	header := w.Header()
	header.Set("Cache-Control", "no-cache") // a browser asks whether it has changed: after an upgrade it has
	header.Set("ETag", tag)
	header.Set("Vary", "Accept-Encoding")

	content := f.zipped
	if zipped {
		header.Set("Content-Encoding", "gzip")
		header.Set("Content-Length", strconv.Itoa(len(f.zipped))) // ServeContent sets that of the other form
	} else {
		z, err := gzip.NewReader(bytes.NewReader(f.zipped))
		if err == nil {
			content, err = io.ReadAll(z)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}

	header.Set("Content-Type", f.contentType)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}
