package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// fileExtensions are those of the files that a directory's reader takes.
var fileExtensions = []string{".yaml", ".yml", ".json", ".jsonl", ".ndjson"}

// Files lists what a path names: the file, or the task files of a directory and
// its subdirectories in the order of their names. Hidden ones are left out.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, withoutSyscall(path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}

	var files []string
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return withoutSyscall(p, err)
		case p != path && d.Name()[0] == '.' && d.IsDir():
			return fs.SkipDir
		case !d.IsDir() && d.Name()[0] != '.' && slices.Contains(fileExtensions, filepath.Ext(p)):
			files = append(files, p)
		}

		return nil
	})

	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no task files in there; they end in .yaml, .yml, .json, .jsonl or .ndjson", path)
	}

	return files, err
}

// Load reads one file's bytes, and no more than may be read of one.
func Load(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, withoutSyscall(path, err)
	}

	defer f.Close()

	return LoadFrom(path, f)
}

// LoadFrom is Load of what is open already, such as the standard input.
func LoadFrom(name string, r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, withoutSyscall(name, err)
	}
	return b, nil
}

// withoutSyscall leaves out the name of the system call.
func withoutSyscall(path string, err error) error {
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}
