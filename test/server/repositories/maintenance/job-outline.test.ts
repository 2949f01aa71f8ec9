import { describe, expect, it } from 'vitest';
import { HOUR_NS } from '../../../../src/base/index.ts';
import type { BackupRepository } from '../../../../src/kube/index.ts';
import { frequencyOf } from '../../../../src/server/repositories/maintenance/job-outline.ts';

const repository = (maintenanceFrequency: string | undefined): BackupRepository =>
  ({ metadata: { name: 'r' }, spec: { maintenanceFrequency } }) as unknown as BackupRepository;
const location = (retention: string | undefined) => ({
  metadata: {
    name: 'default',
    namespace: 'velero',
    uid: 'u',
    resourceVersion: '1',
    creationTimestamp: '2026-11-28T00:00:00Z',
    ...(retention !== undefined && { annotations: { 'longshore.io/retention': retention } }),
  },
});

describe('how often a repository is maintained', () => {
  it.each<[string | undefined, string | undefined, number]>([
    ['168h0m0s', undefined, 168],
    [undefined, undefined, 1],
    ['-1h', undefined, 1],
    // Full maintenance extends locks: they would end before the next one.
    ['168h0m0s', '48h', 24],
    ['168h0m0s', '240h', 120],
    ['168h0m0s', '720h', 168],
    ['1h0m0s', '48h', 1],
    ['168h0m0s', 'for ever', 168],
  ])('a frequency of %s, and a retention of %s', (frequency, retention, hours) => {
    const ns = frequencyOf(repository(frequency), location(retention));
    expect(ns).toBe(BigInt(hours) * HOUR_NS);
  });

  it('is what the repository says where there is no location', () => {
    expect(frequencyOf(repository('168h'), undefined)).toBe(168n * HOUR_NS);
  });
});
