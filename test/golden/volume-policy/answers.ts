import { spawnSync } from 'node:child_process';
import type { Case, World } from './world.ts';

/** What Velero answers about every object of a world, by the place of the object in its list. */
export interface Answer {
  readonly error?: string;
  readonly volumeSnapshots?: readonly string[];
  readonly claimSnapshots?: readonly string[];
  readonly volumeCustom?: readonly string[];
  readonly claimCustom?: readonly string[];
  readonly volumeActions?: readonly string[];
  readonly claimActions?: readonly string[];
  readonly files?: readonly (readonly string[])[];
}

/** Asks Velero's own packages: `program` is the peer policy-answers. */
export function askVelero(
  program: string,
  world: World,
  cases: readonly (Partial<Case> & { readonly parseOnly?: boolean })[],
): Answer[] {
  const input = [world, ...cases].map((each) => `${JSON.stringify(each)}\n`).join('');
  const { status, stdout, stderr } = spawnSync(program, { input, maxBuffer: 1 << 30 });
  if (status !== 0) throw new Error(`policy-answers failed: ${stderr.toString()}`);
  const lines = stdout.toString().trimEnd().split('\n');
  return lines.map((line) => JSON.parse(line) as Answer);
}
