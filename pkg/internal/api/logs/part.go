package logs

import (
	"errors"
	"io"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// logPart is which part of an output is asked for, tail or from, and in which form.
type logPart struct {
	tail  int   // its last so many lines
	from  int64 // what is behind so many bytes
	times bool  // as lines of JSON
}

func (p logPart) contentType() string {
	if p.times {
		return httpapi.TypeLines
	}
	return "text/plain; charset=utf-8"
}

// begin is where the part of f begins, and how large f is.
func (p logPart) begin(f io.ReadSeeker) (begin, size int64, err error) {
	if size, err = f.Seek(0, io.SeekEnd); err != nil || p.tail == 0 {
		return p.from, size, err
	}
	begin, err = lastLines(f, size, p.tail)
	return begin, size, err
}

// of is the part of f. What is written to f from now on is not in it.
func (p logPart) of(f io.ReadSeeker) (*section, error) {
	begin, size, err := p.begin(f)
	if err != nil {
		return nil, err
	}

	s := &section{f: f, begin: min(begin, size), end: size}
	_, err = s.Seek(0, io.SeekStart)

	return s, err
}

// lastLines is where the last n lines of the first size bytes of f begin.
func lastLines(f io.ReadSeeker, size int64, n int) (int64, error) {
	block := make([]byte, 32<<10)
	end := size
	for end > 0 {
		begin := max(0, end-int64(len(block)))
		part := block[:end-begin]

		if _, err := f.Seek(begin, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(f, part); err != nil {
			return 0, err
		}

		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != '\n' || begin+int64(i) == size-1 { // the last line may or may not be ended
				continue
			}
			if n--; n == 0 {
				return begin + int64(i) + 1, nil
			}
		}

		end = begin
	}

	return 0, nil
}

// section is a part of a file that can only be read by seeking.
type section struct {
	f          io.ReadSeeker
	begin, end int64
	at         int64 // from begin
}

func (s *section) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.end - s.begin
	}

	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}

	s.at = offset
	_, err := s.f.Seek(s.begin+offset, io.SeekStart)

	return offset, err
}

func (s *section) Read(b []byte) (int, error) {
	left := s.end - s.begin - s.at
	if left <= 0 {
		return 0, io.EOF
	}

	n, err := s.f.Read(b[:min(int64(len(b)), left)])
	s.at += int64(n)

	return n, err
}
