package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrMailed means that an attempt is marked already.
var ErrMailed = errors.New("a mail with the output was sent already, or was about to be")

// MarkMailed marks an attempt whose output is about to be mailed. The mark is on disk when it returns nil. It returns
// ErrMailed if the attempt has the mark, and after any other error the attempt may have it.
func (s *Spool) MarkMailed(namespace, name, run string, attempt int) error {
	path, err := s.Path(namespace, name, run, attempt)
	if err != nil {
		return err
	}

	f, err := createFile(strings.TrimSuffix(path, endLog) + endMail)
	switch {
	case errors.Is(err, fs.ErrExist):
		return ErrMailed
	case err == nil:
		err = errors.Join(f.Sync(), f.Close(), s.syncDirs(filepath.Dir(path)))
	}

	if err != nil {
		return fmt.Errorf("mark output: %w", err)
	}

	return nil
}

// syncDirs syncs a directory of the spool and the directories above it, because the mark may be their first file.
func (s *Spool) syncDirs(dir string) error {
	for {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}

		if dir == s.root {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}
