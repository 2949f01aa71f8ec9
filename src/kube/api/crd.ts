import { z } from 'zod';
import { shortNamesOf } from './short-names.ts';

/** The definition of a custom resource. Its CustomResourceDefinition is generated from it. */
export interface CrdDefinition {
  readonly kind: string;
  readonly plural: string;
  readonly version: string;
  readonly description: string;
  readonly spec: z.ZodType;
  readonly status: z.ZodType;
  readonly columns: readonly {
    readonly name: string;
    readonly jsonPath: string;
    readonly type: string;
    readonly description?: string;
    readonly format?: string;
    readonly priority?: number;
  }[];
}

export const VELERO_GROUP = 'velero.io';

type Schema = Record<string, unknown>;

/** A structural schema (OpenAPI 3.0) of a zod schema. The API server prunes all other fields. */
function structuralSchema(type: z.ZodType): Schema {
  const schema = z.toJSONSchema(type, {
    target: 'openapi-3.0',
    io: 'input',
    override: ({ jsonSchema, zodSchema }) => {
      delete jsonSchema.propertyNames;
      // Loose objects keep unknown fields in our programs. The API server prunes them, also for
      // Velero's own definitions.
      if (zodSchema._zod.def.type === 'object') delete jsonSchema.additionalProperties;
    },
  }) as Schema;
  delete schema.$schema;
  return schema;
}

/**
 * The CustomResourceDefinition of one kind, ready for `kubectl apply`. Velero's definitions have no
 * status subresource, so this has none.
 */
export function customResourceDefinition(definition: CrdDefinition): Schema {
  const { kind, plural, version, description, columns } = definition;
  return {
    apiVersion: 'apiextensions.k8s.io/v1',
    kind: 'CustomResourceDefinition',
    metadata: { name: `${plural}.${VELERO_GROUP}`, labels: { component: 'velero' } },
    spec: {
      group: VELERO_GROUP,
      names: {
        kind,
        listKind: `${kind}List`,
        plural,
        singular: kind.toLowerCase(),
        shortNames: shortNamesOf(plural),
      },
      scope: 'Namespaced',
      versions: [
        {
          name: version,
          served: true,
          storage: true,
          additionalPrinterColumns: columns,
          schema: {
            openAPIV3Schema: {
              description,
              type: 'object',
              properties: {
                apiVersion: { type: 'string' },
                kind: { type: 'string' },
                metadata: { type: 'object' },
                spec: structuralSchema(definition.spec),
                status: structuralSchema(definition.status),
              },
            },
          },
          subresources: {},
        },
      ],
    },
  };
}
