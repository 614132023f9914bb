// Package config implements "carillon config": the contexts in the user's configuration, and the settings that
// a command would use. Package settings reads and writes the file.
package config
