package task

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Size is a number of bytes that reads and writes itself as people do: "10Gi",
// "512Ki", "1G". Ki, Mi, Gi and Ti are powers of 1024; k, M, G and T of 1000.
type Size int64

// MarshalText writes the size with the largest unit that loses nothing.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize("", string(b))
	if err == nil {
		*s = v
	}
	return err
}

// UnmarshalJSON reads a size, or a number of bytes; null changes nothing.
func (s *Size) UnmarshalJSON(b []byte) error {
	var text string
	switch {
	case string(b) == "null":
		return nil
	case json.Unmarshal(b, &text) != nil:
		text = string(b) // a number, or nothing that is a size
	}

	return s.UnmarshalText([]byte(text))
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"Ti", 1 << 40}, {"T", 1e12}, {"Gi", 1 << 30}, {"G", 1e9}, {"Mi", 1 << 20}, {"M", 1e6}, {"Ki", 1 << 10}, {"k", 1e3},
}

// String spells the size with the largest unit of which it is a whole number:
// 1536Mi, 1G, 100.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}

	return strconv.FormatInt(int64(s), 10)
}

var sizeForm = regexp.MustCompile(`^([0-9]{1,19}(?:\.[0-9]{1,6})?)\s*([kKMGT]?i?)[bB]?$`)

// ParseSize reads a number of bytes, 0 or more: a whole one, or one with a unit, which
// is rounded to bytes: 100, 64k, 1.5Gi. A trailing B is taken, too. The error is an
// *Error of the field.
func ParseSize(field, text string) (Size, error) {
	m := sizeForm.FindStringSubmatch(strings.TrimSpace(text))
	factor := int64(0)
	if m != nil {
		factor = sizeFactor(m[2])
	}

	if factor == 0 {
		return 0, Invalid(CodeOutOfRange, field, "%s is not a number of bytes, such as 512Ki, 64Mi, 1.5Gi or 10G", Quote(text))
	}
	if factor == 1 && strings.Contains(m[1], ".") {
		return 0, Invalid(CodeOutOfRange, field, "%s is not a whole number of bytes; did you mean %sGi?", Quote(text), m[1])
	}
	if whole, err := strconv.ParseInt(m[1], 10, 64); err == nil && whole <= math.MaxInt64/factor {
		return Size(whole * factor), nil // a float would round what has more than 15 digits
	}

	n, err := strconv.ParseFloat(m[1], 64)
	if n *= float64(factor); err != nil || n >= math.MaxInt64 {
		return 0, Invalid(CodeOutOfRange, field, "%s is more bytes than there are", Quote(text))
	}

	return Size(math.Round(n)), nil
}

// sizeFactor is how many bytes a unit is; 0: it is none.
func sizeFactor(unit string) int64 {
	switch unit {
	case "":
		return 1
	case "K":
		return 1e3
	}

	for _, u := range sizeUnits {
		if u.name == unit {
			return u.bytes
		}
	}

	return 0
}
