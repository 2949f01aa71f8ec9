import type { KubeObject } from '../../src/kube/index.ts';

export const NAMESPACE = 'velero';

/** An object in the simulated world. */
export interface Loose {
  metadata: KubeObject['metadata'];
  spec: Record<string, unknown>;
  status?: Record<string, unknown>;
}

export const volumeHandle = ({ spec }: Loose): string =>
  (spec.csi as Record<string, string>).volumeHandle ?? '';
