export const PEERS = ['kopia', 'rustic', 'restic', 'borg'] as const;
export type Peer = (typeof PEERS)[number];
/** Who does the work: Longshore, or a peer by name. */
export type Side = 'ours' | Peer;
