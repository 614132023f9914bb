// Package config is "carillon config": the contexts in the user's configuration, and which
// settings a command would use. The file itself is of package settings.
package config
