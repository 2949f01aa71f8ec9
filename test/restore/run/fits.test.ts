import { expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import type {
  BackedUpItems,
  PersistentVolumeSteps,
  PodVolumeSteps,
} from '../../../src/restore/index.ts';
import type { PodVolumeRestores, RestoredVolumes } from '../../../src/restore-volumes/index.ts';

/** The interfaces of a run and their implementations: the compiler reports a mismatch. */
const FITS = [
  (contents: Contents): BackedUpItems => contents,
  (volumes: RestoredVolumes): PersistentVolumeSteps => volumes,
  (volumes: PodVolumeRestores): PodVolumeSteps => volumes,
];

it('a run takes the contents of an archive, and what is done about volumes', () => {
  expect(FITS).toHaveLength(3);
});
