import { describe, expect, it } from 'vitest';
import { refusalOf } from '../../src/exposer/index.ts';
import type { Pod } from '../../src/kube/index.ts';

const pod = (status: object): Pod => ({ status: { phase: 'Failed', ...status } }) as never;

describe('a pod that the kubelet did not let in', () => {
  it.each(['OutOfpods', 'OutOfcpu', 'OutOfephemeral-storage', 'NodeShutdown', 'Evicted'])(
    'for want of room (%s) may be let in later',
    (reason) => {
      expect(refusalOf(pod({ reason, message: 'Pod was rejected: why' }))).toBe(
        `${reason}: Pod was rejected: why`,
      );
    },
  );

  it.each(['NodeAffinity', 'SysctlForbidden', 'AppArmor', 'PodOSNotSupported', ''])(
    'for what will not change (%s) never is',
    (reason) => {
      expect(refusalOf(pod({ reason, message: 'Pod was rejected: why' }))).toBeUndefined();
    },
  );

  it('is no pod that ran', () => {
    const containerStatuses = [{ state: { terminated: { exitCode: 137 } } }];
    expect(refusalOf(pod({ reason: 'Evicted', containerStatuses }))).toBeUndefined();
  });
});
