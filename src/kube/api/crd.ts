import { z } from 'zod';
import { shortNamesOf } from './short-names.ts';

/** What is said once of a custom resource; its CustomResourceDefinition follows from it. */
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

/**
 * A structural schema (OpenAPI 3.0) of a zod schema: what the API server takes, and prunes the
 * rest.
 */
function structuralSchema(type: z.ZodType): Schema {
  const schema = z.toJSONSchema(type, {
    target: 'openapi-3.0',
    io: 'input',
    override: ({ jsonSchema, zodSchema }) => {
      delete jsonSchema.propertyNames;
      // Open objects keep what they do not know in our programs; in the API server it is pruned, as
      // with Velero's.
      if (zodSchema._zod.def.type === 'object') delete jsonSchema.additionalProperties;
    },
  }) as Schema;
  delete schema.$schema;
  return schema;
}

/**
 * The CustomResourceDefinition of one kind, ready for `kubectl apply`. No status subresource, as
 * Velero's have none.
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
