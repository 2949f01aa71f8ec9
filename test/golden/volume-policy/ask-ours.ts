import { isCode } from '../../../src/base/index.ts';
import {
  ListedVolumes,
  parseVolumePolicies,
  VolumeHelper,
  type VolumeItem,
  type VolumeLookup,
  withGlobalPolicies,
} from '../../../src/volume-policy/index.ts';
import type { Answer } from './answers.ts';
import type { Case, World } from './world.ts';

/** Our answers, in the form of Velero's. */
export async function askOurs(
  world: World,
  { policies, global, snapshotVolumes, defaultToFiles, backupExcludePVC, matchParameters }: Case,
  views: 'joined' | 'velero',
): Promise<Answer> {
  const own = policies === null ? undefined : parseVolumePolicies(policies);
  const helper = new VolumeHelper({
    policies: withGlobalPolicies(own, global === null ? undefined : parseVolumePolicies(global)),
    snapshotVolumes,
    defaultsToFiles: defaultToFiles,
    backupExcludePvc: backupExcludePVC,
    volumes: lookupIn(world),
    views,
  });
  const action = async (item: VolumeItem): Promise<string> => {
    const found = await helper.actionParameters(item);
    return found ? `${found.type} ${JSON.stringify(sorted(found.parameters ?? null))}` : '';
  };
  const volumes = world.volumes.map((pv) => ({ pv }));
  const claims = world.claims.map((pvc) => ({ pvc }));
  const snapshot = (item: VolumeItem): Promise<string> => said(helper.shouldPerformSnapshot(item));
  const custom = (item: VolumeItem): Promise<string> =>
    said(helper.shouldPerformCustomAction(item, matchParameters));
  return {
    volumeSnapshots: await Promise.all(volumes.map(snapshot)),
    claimSnapshots: await Promise.all(claims.map(snapshot)),
    volumeCustom: await Promise.all(volumes.map(custom)),
    claimCustom: await Promise.all(claims.map(custom)),
    volumeActions: await Promise.all(volumes.map(action)),
    claimActions: await Promise.all(claims.map(action)),
    files: await Promise.all(
      world.pods.map((pod) =>
        Promise.all(
          (pod.spec.volumes ?? []).map((volume) => said(helper.shouldPerformFsBackup(volume, pod))),
        ),
      ),
    ),
  };
}

export const lookupIn = (world: World): VolumeLookup =>
  new ListedVolumes({
    pvs: (take) => Promise.resolve(world.volumes.flatMap(take)),
    pvcs: (_namespace, take) => Promise.resolve(world.claims.flatMap(take)),
    pods: (_namespace, take) => Promise.resolve(world.pods.flatMap(take)),
  });

async function said(answer: Promise<boolean>): Promise<string> {
  try {
    return (await answer) ? 'yes' : 'no';
  } catch (error) {
    if (isCode(error, 'NO_VOLUME', 'NO_PVC')) return 'error';
    throw error;
  }
}

/** As Go writes maps. */
const sorted = (value: unknown): unknown => {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(sorted);
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, each]) => [key, sorted(each)]));
};
