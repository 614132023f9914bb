package logs

import (
	"errors"
	"io"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// logPart selects a part of an output, by tail or by from, and its format.
type logPart struct {
	tail  int   // the number of lines at the end; 0: from applies
	from  int64 // the number of bytes to skip at the start
	times bool  // format: lines of JSON with times
}

// contentType returns the media type of the answer.
func (p logPart) contentType() string {
	if p.times {
		return httpapi.TypeLines
	}
	return "text/plain; charset=utf-8"
}

// findBegin returns the offset in f at which the part begins, and the size of f.
func (p logPart) findBegin(f io.ReadSeeker) (begin, size int64, err error) {
	if size, err = f.Seek(0, io.SeekEnd); err != nil || p.tail == 0 {
		return p.from, size, err
	}
	begin, err = lastLines(f, size, p.tail)
	return begin, size, err
}

// sectionOf returns the part of f. It does not include what is written to f afterwards.
func (p logPart) sectionOf(f io.ReadSeeker) (*section, error) {
	begin, size, err := p.findBegin(f)
	if err != nil {
		return nil, err
	}

	s := &section{f: f, begin: min(begin, size), end: size}
	_, err = s.Seek(0, io.SeekStart)

	return s, err
}

// lastLines returns the offset at which the last n lines of the first size bytes of f begin. It reads backward
// in blocks, so its cost depends on the part and not on the size of f.
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
			if part[i] != '\n' || begin+int64(i) == size-1 { // a newline at the very end terminates the last line and begins no new one
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

// section is a part of a file. io.SectionReader is not usable, because a compressed file offers only Seek and
// Read.
type section struct {
	f          io.ReadSeeker
	begin, end int64
	at         int64 // relative to begin
}

// Seek implements io.Seeker, relative to the section.
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

// Read implements io.Reader within the section.
func (s *section) Read(b []byte) (int, error) {
	left := s.end - s.begin - s.at
	if left <= 0 {
		return 0, io.EOF
	}

	n, err := s.f.Read(b[:min(int64(len(b)), left)])
	s.at += int64(n)

	return n, err
}
