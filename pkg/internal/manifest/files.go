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

// fileExtensions are the extensions of files that are read in a directory.
var fileExtensions = []string{".yaml", ".yml", ".json", ".jsonl", ".ndjson"}

// Files returns the file that a path names, or the task files of a directory and its subdirectories, ordered by
// name. Hidden files and directories are skipped.
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
		err = fmt.Errorf("%s: contains no task files; their names end in .yaml, .yml, .json, .jsonl or .ndjson", path)
	}

	return files, err
}

// Load reads a file, up to one byte more than MaxFile. Read rejects such a file.
func Load(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, withoutSyscall(path, err)
	}

	defer f.Close()

	return LoadFrom(path, f)
}

// LoadFrom is Load for a stream, such as standard input.
func LoadFrom(name string, r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, withoutSyscall(name, err)
	}
	return b, nil
}

// withoutSyscall replaces a file system error by one without the name of the system call.
func withoutSyscall(path string, err error) error {
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}
