import type { BackupLog } from '../backup/index.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '../kube/index.ts';
import type { PersistentVolumeSteps } from '../restore/index.ts';
import { planVolume, type VolumeFacts } from './decisions.ts';

export interface RehearsedVolumesOptions {
  /** The backup's facts about a volume. */
  readonly factsOf: (pv: PersistentVolume) => Promise<VolumeFacts>;
  readonly log: BackupLog;
}

/** Logs the plan for each PersistentVolume. Calls no provider, and waits for no name. */
export class RehearsedVolumes implements PersistentVolumeSteps {
  readonly #options: RehearsedVolumesOptions;
  readonly #provisioned = new Set<string>();

  constructor(options: RehearsedVolumesOptions) {
    this.#options = options;
  }

  async prepare(pv: PersistentVolume): ReturnType<PersistentVolumeSteps['prepare']> {
    const { factsOf, log } = this.#options;
    const { name } = pv.metadata;
    const about = { resource: 'persistentvolumes', namespace: '', name };
    const plan = planVolume(pv, await factsOf(pv));
    if ('warning' in plan && plan.warning !== undefined) log.warn(plan.warning, about);
    if (plan.kind === 'provision') {
      this.#provisioned.add(name);
      log.info(`its claim gets a new volume, because ${plan.why}`, about);
      return { isRestored: false };
    }
    const how =
      plan.kind === 'snapshot'
        ? 'its provider makes a volume of its snapshot'
        : 'it is made as it was';
    log.info(`${how}, because ${plan.why}`, about);
    return { isRestored: true, item: pv };
  }

  claimOf(claim: PersistentVolumeClaim): PersistentVolumeClaim {
    const { volumeName = '' } = claim.spec;
    if (!this.#provisioned.has(volumeName)) return claim;
    const spec = { ...claim.spec };
    Reflect.deleteProperty(spec, 'volumeName');
    return { ...claim, spec };
  }
}
