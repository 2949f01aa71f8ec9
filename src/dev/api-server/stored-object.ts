import type { KubeObject } from '../../kube/index.ts';

/** A stored object, with any fields. */
export type Stored = KubeObject & Record<string, unknown>;
