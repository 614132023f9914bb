//go:build !race

package racetest

const raceDetector = false
