# All that a node of the tests is given otherwise than a real one: the names of the images, which are in no registry,
s/image: \(gce-metadata-proxy[a-z-]*\):.*/image: localhost\/\1:test/
s/image: your-application/image: localhost\/pod:test/
# and what an emulated processor needs, which is 5 to 15 times slower: CPU, and time for probes. Memory stays as it is.
/limits:/,/memory:/s/cpu: .*/cpu: 500m/
s/timeoutSeconds: .*/timeoutSeconds: 30/
