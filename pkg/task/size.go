package task

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Size is a number of bytes with a text form such as "10Gi", "512Ki" or "1G". Ki, Mi, Gi and Ti are powers of
// 1024; k, M, G and T are powers of 1000.
type Size int64

// MarshalText encodes the size with the largest unit that is exact.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a size.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize("", string(b))
	if err == nil {
		*s = v
	}
	return err
}

// UnmarshalJSON decodes a size, or a number of bytes. null changes nothing.
func (s *Size) UnmarshalJSON(b []byte) error {
	var text string
	switch {
	case string(b) == "null":
		return nil
	case json.Unmarshal(b, &text) != nil:
		text = string(b) // a number, or invalid
	}

	return s.UnmarshalText([]byte(text))
}

// sizeUnits are the units from large to small.
var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"Ti", 1 << 40}, {"T", 1e12}, {"Gi", 1 << 30}, {"G", 1e9}, {"Mi", 1 << 20}, {"M", 1e6}, {"Ki", 1 << 10}, {"k", 1e3},
}

// String formats the size with the largest unit that divides it: 1536Mi, 1G, 100.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}

	return strconv.FormatInt(int64(s), 10)
}

// sizeForm matches a number with an optional unit.
var sizeForm = regexp.MustCompile(`^([0-9]{1,19}(?:\.[0-9]{1,6})?)\s*([kKMGT]?i?)[bB]?$`)

// ParseSize parses a non-negative number of bytes, which may have a unit: 100, 64k, 1.5Gi. With a unit it is
// rounded to whole bytes. A trailing B is accepted. An error is an *Error for the field.
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
		return Size(whole * factor), nil // a float would be inexact above 15 digits
	}

	n, err := strconv.ParseFloat(m[1], 64)
	if n *= float64(factor); err != nil || n >= math.MaxInt64 {
		return 0, Invalid(CodeOutOfRange, field, "%s is too large", Quote(text))
	}

	return Size(math.Round(n)), nil
}

// sizeFactor returns the number of bytes of a unit, or 0 for an unknown unit.
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
