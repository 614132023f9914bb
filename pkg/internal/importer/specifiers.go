package importer

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// unitScope is the service manager to which a unit belongs: that of the system, or that of a user.
type unitScope struct {
	user  string // "": the system
	home  string // the home directory of the user, "" if it is not known
	known bool   // the path of the unit determines the manager
}

var (
	systemUnitPath = regexp.MustCompile(`(^|/)systemd/system(\.control|\.attached)?/`)
	globalUserPath = regexp.MustCompile(`(^|/)(etc|lib|usr/share|usr/local/share|run)/systemd/user(\.control)?/|(^|/)run/user/[0-9]+/systemd/`)
	homeUnitPath   = regexp.MustCompile(`^(.*/)?(home/([^/]+)|root)/\.(config|local/share)/systemd/user(\.control)?/`)
	anyUserPath    = regexp.MustCompile(`(^|/)systemd/user(\.control)?/`)
)

// scopeOf returns the service manager of a unit. It refuses units of all users, and of a user whose name the path does
// not contain, unless the options name the user.
func scopeOf(u Unit, o Options) (unitScope, error) {
	origin := u.origin()
	if o.User != "" {
		return unitScope{user: o.User, home: o.homeOf(o.User), known: true}, nil
	}

	switch m := homeUnitPath.FindStringSubmatch(origin); {
	case m != nil && m[3] != "":
		return unitScope{user: m[3], home: "/home/" + m[3], known: true}, nil
	case m != nil:
		return unitScope{user: "root", home: "/root", known: true}, nil
	case globalUserPath.MatchString(origin):
		return unitScope{}, fmt.Errorf("is a unit of the service managers of all users: to run it as one of them, use --user NAME")
	case anyUserPath.MatchString(origin):
		return unitScope{}, fmt.Errorf("is a unit of a user whose name is not in its path: use --user NAME")
	}

	return unitScope{known: systemUnitPath.MatchString(origin)}, nil
}

// homeOf returns the home directory of a user, or "" if it is not known.
func (o Options) homeOf(name string) string {
	if o.Home == nil {
		return ""
	}
	return o.Home(name)
}

// expander replaces the specifiers of a unit: %n, %i, %%.
type expander struct {
	unitName string
	scope    unitScope
	host     string // the name of the host on which the task runs; "": not known
}

// expandSpecifiers replaces the specifiers. It returns an error for those whose value depends on the host.
func (e expander) expandSpecifiers(text string) (string, error) {
	if !strings.Contains(text, "%") {
		return text, nil
	}

	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}

		if i++; i == len(text) || text[i] != '%' && !isAlphanumeric(text[i]) {
			b.WriteByte('%') // which does not begin a specifier
			i--
			continue
		}

		v, err := e.specifierValue(text[i])
		if err != nil {
			return "", err
		}

		b.WriteString(v)
	}

	return b.String(), nil
}

// specifierValue returns the value of a specifier.
func (e expander) specifierValue(c byte) (string, error) {
	base := strings.TrimSuffix(e.unitName, path.Ext(e.unitName))
	prefix, instance, isInstance := strings.Cut(base, "@")
	last := prefix[strings.LastIndexByte(prefix, '-')+1:]

	switch c {
	case '%':
		return "%", nil
	case 'n':
		return e.unitName, nil
	case 'N':
		return base, nil
	case 'p':
		return prefix, nil
	case 'P':
		return unescapeUnitName(prefix), nil
	case 'i':
		return instance, nil
	case 'I':
		return unescapeUnitName(instance), nil
	case 'j':
		return last, nil
	case 'J':
		return unescapeUnitName(last), nil
	case 'f':
		if !isInstance {
			instance = prefix
		}
		return "/" + strings.TrimPrefix(unescapeUnitName(instance), "/"), nil
	case 'T':
		return "/tmp", nil
	case 'V':
		return "/var/tmp", nil
	}

	if c == 'H' && e.host != "" {
		return e.host, nil
	}
	if short, _, _ := strings.Cut(e.host, "."); c == 'l' && short != "" {
		return short, nil
	}

	if e.scope.user != "" {
		return e.userSpecifier(c)
	}

	// The service manager of the system runs as root, whatever User= says.
	system := map[byte]string{
		't': "/run", 'S': "/var/lib", 'C': "/var/cache", 'L': "/var/log", 'E': "/etc",
		'h': "/root", 'u': "root", 'U': "0", 'g': "root", 'G': "0",
	}
	if v, ok := system[c]; ok {
		return v, nil
	}

	return "", e.unknownSpecifier(c)
}

// hostSpecifiers are the specifiers whose value depends on the host.
const hostSpecifiers = "AaBbCdDEgGHhlLmMoqsSTtUuVvWwyY"

// unknownSpecifier returns the error for a specifier without a value.
func (e expander) unknownSpecifier(c byte) error {
	switch {
	case !strings.ContainsRune(hostSpecifiers, rune(c)):
		return fmt.Errorf("%%%c is not a specifier, so that systemd ignores the line: write %%%% for a %%", c)
	case e.scope.user != "":
		return fmt.Errorf("the specifier %%%c is not supported in a unit of a user, because its value depends on the host: write the value, or %%%% for a %%", c)
	default:
		return fmt.Errorf("the specifier %%%c is not supported, because its value depends on the host: write the value, or %%%% for a %%", c)
	}
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

// userSpecifier returns the value of a specifier in a unit of a user.
func (e expander) userSpecifier(c byte) (string, error) {
	if c == 'u' {
		return e.scope.user, nil
	}

	below, ok := map[byte]string{'h': "", 'E': "/.config", 'C': "/.cache"}[c]
	switch {
	case !ok:
		return "", e.unknownSpecifier(c)
	case e.scope.home == "":
		return "", fmt.Errorf("the specifier %%%c is not supported, because this host does not know the home directory of %s: write the value", c, e.scope.user)
	}

	return e.scope.home + below, nil
}

var hexEscape = regexp.MustCompile(`\\x[0-9a-fA-F]{2}`)

// unescapeUnitName reverses systemd-escape: - is a slash, and \x2d a byte.
func unescapeUnitName(text string) string {
	text = strings.ReplaceAll(text, "-", "/")
	return hexEscape.ReplaceAllStringFunc(text, func(m string) string {
		c, _, err := readEscape(m[1:])
		if err != nil {
			return m
		}
		return c
	})
}

// findUnit returns the index of the unit with a name that belongs to another unit: next to it, or else anywhere among
// those of the same service manager. -1: there is none.
func findUnit(units []Unit, name string, beside Unit, o Options) int {
	scope, err := scopeOf(beside, o)
	matches := func(u Unit) bool {
		other, err2 := scopeOf(u, o)
		return path.Base(u.File) == name && (err == nil) == (err2 == nil) && other.user == scope.user
	}

	i := slices.IndexFunc(units, func(u Unit) bool { return matches(u) && path.Dir(u.File) == path.Dir(beside.File) })
	if i < 0 {
		i = slices.IndexFunc(units, matches)
	}

	return i
}
