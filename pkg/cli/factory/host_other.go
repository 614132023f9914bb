//go:build !linux

package factory

// RestoreHost is not used, because nodes run only on Linux.
type RestoreHost func(file string) (struct{}, error)
