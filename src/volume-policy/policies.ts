import { z } from 'zod';
import { parse } from 'yaml';
import { CodedError, messageOf } from '../base/index.ts';
import { boundsOf, type Conditions, matchesVolume, type VolumeView } from './conditions.ts';

export interface PolicyAction {
  readonly type: 'skip' | 'fs-backup' | 'snapshot' | 'custom';
  readonly parameters?: Readonly<Record<string, unknown>> | undefined;
}

export interface VolumePolicies {
  /** Of the first policy whose conditions all hold; undefined where none is about the volume. */
  actionFor(volume: VolumeView): PolicyAction | undefined;
}

const strings = z.array(z.string());
const pairs = z.record(z.string(), z.string());

const capacity = z.string().refine(
  (text) => {
    const bounds = boundsOf(text);
    return bounds !== undefined && (bounds[1] === 0 || bounds[0] <= bounds[1]);
  },
  { error: 'wrong format of Capacity: it is "low,high", such as "0,100Gi"' },
);
const csi = z
  .strictObject({ driver: z.string().optional(), volumeAttributes: pairs.optional() })
  .refine(({ driver, volumeAttributes }) => driver || !volumeAttributes, {
    error: 'csi driver should not be empty when filtering by volume attributes',
  });

const conditions = z.strictObject({
  capacity: capacity.optional(),
  storageClass: strings.optional(),
  nfs: z.strictObject({ server: z.string().optional(), path: z.string().optional() }).nullish(),
  csi: csi.nullish(),
  volumeTypes: strings.optional(),
  pvcLabels: pairs.optional(),
  pvcPhase: strings.optional(),
  pvcVolumeMode: z.string().optional(),
  pvcAccessModes: strings.optional(),
});

/** Unknown words are errors, as in Velero: a condition that is not understood would let volumes through. */
const document = z.strictObject({
  version: z.literal('v1', { error: 'incompatible version number with supported version v1' }),
  volumePolicies: z
    .array(
      z.strictObject({
        conditions: conditions.nullish(),
        action: z.strictObject({
          type: z.enum(['skip', 'fs-backup', 'snapshot', 'custom'], {
            error: ({ input }) => `invalid action type ${String(input)}`,
          }),
          parameters: z.record(z.string(), z.unknown()).nullish(),
        }),
      }),
    )
    .nullish(),
  // Of resources, not of volumes: the server looks at it.
  includeExcludePolicy: z.unknown().optional(),
});

/** The YAML of a policy ConfigMap. Throws `BAD_VOLUME_POLICY` with all that is wrong. */
export function parseVolumePolicies(yaml: string): VolumePolicies {
  let parsed: unknown;
  try {
    parsed = parse(yaml);
  } catch (cause) {
    throw badPolicy(messageOf(cause), cause);
  }
  const result = document.safeParse(parsed);
  if (!result.success) {
    const problems = result.error.issues.map(({ path, message }) =>
      path.length === 0 ? message : `${path.join('.')}: ${message}`,
    );
    throw badPolicy(problems.join('; '), result.error);
  }
  const policies = result.data.volumePolicies ?? [];
  return {
    actionFor: (volume) => {
      const found = policies.find((policy) =>
        matchesVolume((policy.conditions ?? {}) as Conditions, volume),
      );
      if (!found) return undefined;
      const { type, parameters } = found.action;
      return { type, ...(parameters && { parameters }) };
    },
  };
}

const badPolicy = (why: string, cause: unknown): CodedError =>
  new CodedError('BAD_VOLUME_POLICY', `failed to decode yaml data into resource policies: ${why}`, {
    cause,
  });
