module cron-answers

go 1.26.0

require github.com/netresearch/go-cron v0.15.0
