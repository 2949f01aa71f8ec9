import { z } from 'zod';
import { always, compareUtf8, goStruct, mapField, nested, omitEmpty } from '../base/index.ts';
import type { KubeObject } from '../kube/index.ts';

/**
 * A list, or Go's `null`. Stops at the first invalid element. zod would describe every error, in a
 * hundred times the size of a forged file.
 */
export function listSchema<S extends z.ZodType>(element: S) {
  return z
    .array(z.unknown())
    .nullable()
    .transform((list, context): z.infer<S>[] => {
      const elements: z.infer<S>[] = [];
      for (const [index, value] of (list ?? []).entries()) {
        const parsed = element.safeParse(value);
        if (!parsed.success) {
          const { path = [], message = '' } = parsed.error.issues[0] ?? {};
          context.addIssue({ code: 'custom', path: [index, ...path], message });
          return z.NEVER;
        }
        elements.push(parsed.data);
      }
      return elements;
    });
}

/** Schemas of a backup's or restore's JSON files. Only used fields are checked. */

export const objectsSchema = listSchema(z.looseObject({})).transform(
  (list) => list as unknown as KubeObject[],
);

const messages = listSchema(z.string()).nullish();
const resultSchema = z.looseObject({
  velero: messages,
  cluster: messages,
  namespaces: z.record(z.string(), listSchema(z.string())).nullish(),
});
/** Warnings and errors: pkg/util/results (v1.18.3). */
export const resultsSchema = z.looseObject({
  errors: resultSchema.optional(),
  warnings: resultSchema.optional(),
});

export type Result = z.infer<typeof resultSchema>;
export type Results = z.infer<typeof resultsSchema>;

/** Entries for people: first those of the run itself, then the cluster, then the namespaces. */
export function resultEntries(result: Result | undefined): string[] {
  const { velero, cluster, namespaces } = result ?? {};
  const ofNamespaces = Object.entries(namespaces ?? {}).sort(([a], [b]) => compareUtf8(a, b));
  return [
    ...(velero ?? []),
    ...(cluster ?? []).map((text) => `cluster: ${text}`),
    ...ofNamespaces.flatMap(([name, texts]) => texts.map((text) => `namespace ${name}: ${text}`)),
  ];
}

const RESULT = goStruct({
  velero: omitEmpty,
  cluster: omitEmpty,
  namespaces: mapField(),
});
/** A map in Go, so its keys are sorted. */
export const RESULTS = goStruct({ errors: nested(RESULT), warnings: nested(RESULT) });

/** `apiVersion/Kind` to `namespace/name`, or to `namespace/name(action)` for a restore. */
export type ResourceList = Readonly<Record<string, readonly string[]>>;
export const resourceListSchema = z
  .record(z.string(), listSchema(z.string()))
  .nullable()
  .transform((list) => list ?? {});

/** The same for millions of names, each computed when it is read. */
export type ResourceNames = Iterable<readonly [kind: string, names: Iterable<string>]>;

/** Kinds and names sorted, as Velero has them (pkg/backup/request.go, BackupResourceList). */
const sortedResourceList = (list: ResourceList): Map<string, readonly string[]> =>
  new Map(
    Object.entries(list)
      .sort(([a], [b]) => compareUtf8(a, b))
      .map(([kind, names]) => [kind, [...names].sort(compareUtf8)]),
  );

export const namesIn = (list: ResourceList | ResourceNames): ResourceNames =>
  Symbol.iterator in list ? list : sortedResourceList(list);

/** Snapshots by a provider's own API: internal/volume/native_snapshot.go (v1.18.3). */
export const VOLUME_SNAPSHOT = goStruct({
  spec: nested(
    goStruct({
      backupName: always(''),
      backupUID: always(''),
      location: always(''),
      persistentVolumeName: always(''),
      providerVolumeID: always(''),
      volumeType: always(''),
      volumeAZ: omitEmpty,
      volumeIOPS: omitEmpty,
    }),
  ),
  status: nested(goStruct({ providerSnapshotID: omitEmpty, phase: omitEmpty })),
});
const volumeSnapshotSchema = z.looseObject({
  spec: z.looseObject({
    backupName: z.string().optional(),
    backupUID: z.string().optional(),
    location: z.string().optional(),
    persistentVolumeName: z.string().optional(),
    providerVolumeID: z.string().optional(),
    volumeType: z.string().optional(),
    volumeAZ: z.string().optional(),
    volumeIOPS: z.union([z.number(), z.bigint()]).nullish(),
  }),
  status: z
    .looseObject({
      providerSnapshotID: z.string().optional(),
      /** `New`, `Completed`, `Failed`. */
      phase: z.string().optional(),
    })
    .optional(),
});
export type NativeSnapshot = z.infer<typeof volumeSnapshotSchema>;

export const volumeSnapshotsSchema = listSchema(volumeSnapshotSchema);

/** A stored Backup. Unknown fields are kept. */
export const backupSchema = z.looseObject({
  apiVersion: z.string().regex(/^velero\.io\//),
  kind: z.literal('Backup'),
  metadata: z.looseObject({
    name: z.string(),
    namespace: z.string().optional(),
    uid: z.string().optional(),
    creationTimestamp: z.string().nullish(),
  }),
  spec: z.looseObject({}).optional(),
  status: z
    .looseObject({
      phase: z.string().optional(),
      expiration: z.string().nullish(),
      completionTimestamp: z.string().nullish(),
    })
    .optional(),
});
export type StoredBackup = z.infer<typeof backupSchema>;
