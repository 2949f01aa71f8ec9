module peers/fake-gcs-server

go 1.25.0

require github.com/fsouza/fake-gcs-server v1.56.1
