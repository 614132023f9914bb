package backup

// SetBucketTries sets how often a request to a bucket is sent, and returns the former number.
func SetBucketTries(n int) (former int) {
	former, bucketTries = bucketTries, n
	return former
}

// SortListed returns backups in the order of List.
var SortListed = sortListed
