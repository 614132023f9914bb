// Command release writes the container image of a release: release FILE VERSION ARCH=PROGRAM [ARCH=PROGRAM]
//
// The image contains the program, the CA certificates of Mozilla, and a user. Zones of time are in the program. The file has the form of an
// OCI image layout, with an image for each architecture. It depends only on the programs, the version, SOURCE_DATE_EPOCH and the versions of
// modules in go.mod.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the user of the agent, as in other images without a shell. Kubernetes accepts only a number for runAsNonRoot.
const user = 65532

func main() {
	if len(os.Args) < 4 {
		fail(errors.New("usage: release FILE VERSION ARCH=PROGRAM [ARCH=PROGRAM]"))
	}
	if err := writeImage(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "release:", err)
	os.Exit(1)
}

// writeImage writes the images of all architectures.
func writeImage(file, version string, programs []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}

	created := time.Unix(seconds, 0).UTC()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		arch, program, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("%s is not ARCH=PROGRAM", p)
		}

		image, err := newImage(arch, program, version, created)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}

	dir, err := os.MkdirTemp(filepath.Dir(file), "image-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	// The reference of the layout is the index of both architectures, so that tools load the one of their host.
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version}))
	}
	if err != nil {
		return err
	}

	return archiveDir(file, dir, created)
}

// newImage returns the image of an architecture.
func newImage(arch, program, version string, created time.Time) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}

	files, err := newLayer([]entry{
		{name: "etc/passwd", content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\ncarillon:x:65532:65532:carillon:/var/lib/carillon:/sbin/nologin\n")},
		{name: "etc/group", content: []byte("root:x:0:\nnogroup:x:65534:\ncarillon:x:65532:\n")},
		{name: "etc/ssl/certs/ca-certificates.crt", content: rootCertificates()},
		{name: "etc/carillon/", mode: 0o755},
		{name: "tmp/", mode: 0o1777},
		{name: "var/lib/carillon/", mode: 0o700, owner: user},
	}, created)
	if err != nil {
		return nil, err
	}
	binary, err := newLayer([]entry{{name: "usr/bin/carillon", mode: 0o755, content: content}}, created)
	if err != nil {
		return nil, err
	}

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, files, binary); err != nil {
		return nil, err
	}

	config := v1.Config{
		User: fmt.Sprintf("%d:%[1]d", user), Entrypoint: []string{"/usr/bin/carillon"}, Cmd: []string{"agent"}, WorkingDir: "/",
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Volumes:      map[string]struct{}{"/var/lib/carillon": {}},
		ExposedPorts: map[string]struct{}{"7070/tcp": {}},
		StopSignal:   "SIGTERM",
		Labels: map[string]string{"org.opencontainers.image.title": "carillon", "org.opencontainers.image.version": version,
			"org.opencontainers.image.source": "https://github.com/carillonhq/carillon", "org.opencontainers.image.licenses": "Apache-2.0"},
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}

	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", arch, v1.Time{Time: created}, config

	return mutate.ConfigFile(image, file)
}

// entry is a file of a layer, or a directory, whose name ends with a slash. The mode of a file is 0644 by default.
type entry struct {
	name    string
	mode    int64
	owner   int
	content []byte
}

// newLayer returns a layer with these files and their directories.
func newLayer(entries []entry, created time.Time) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	seen := map[string]bool{}
	add := func(e entry) error {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.content)), ModTime: created, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch {
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		case e.mode == 0:
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}

		_, err := w.Write(e.content)

		return err
	}

	for _, e := range entries {
		for i, c := range e.name[:len(e.name)-1] {
			if dir := e.name[:i+1]; c == '/' && !seen[dir] {
				seen[dir] = true
				if err := add(entry{name: dir, mode: 0o755}); err != nil {
					return nil, err
				}
			}
		}

		seen[e.name] = true
		if err := add(e); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}

	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression))
}

// rootCertificates returns the CA certificates of Mozilla in PEM. Those that are trusted only for some names are left out, because a file
// cannot say this.
func rootCertificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer does not fail
		}
	}

	return b.Bytes()
}

// archiveDir writes the files of a directory to a tar archive, in the order of their names.
func archiveDir(file, dir string, created time.Time) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()

	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: created, Format: tar.FormatPAX}); err != nil {
			return err
		}

		_, err = w.Write(content)

		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return err
	}

	return out.Close()
}
