// Command site writes the manual as a site: site DIR [PAGE.md...]. The pages are references that were generated, and become
// reference/PAGE.html. Part of make site.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/carillonhq/carillon/docs"
	"github.com/carillonhq/carillon/pkg/docsite"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: site DIR [PAGE.md...]")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// write writes the site anew. The version is that of the environment.
func write(dir string, references []string) error {
	sources, err := os.MkdirTemp("", "carillon-site-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(sources)

	if err := os.CopyFS(sources, docs.Files); err != nil {
		return err
	}
	for _, name := range references {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(sources, "reference", filepath.Base(name)), b); err != nil {
			return err
		}
	}

	site, err := docsite.Render(os.DirFS(sources), os.Getenv("VERSION"))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, content := range site {
		if err := writeFile(filepath.Join(dir, name), content); err != nil {
			return err
		}
	}
	fmt.Printf("wrote %s: %d files\n", dir, len(site))

	return nil
}

func writeFile(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, content, 0o644)
}
