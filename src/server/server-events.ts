import { EventRecorder, type EventRecorderOptions } from '../kube/index.ts';

export type ServerEventsOptions = Pick<EventRecorderOptions, 'client' | 'logger' | 'host'> &
  Partial<Pick<EventRecorderOptions, 'clock'>>;

/** Events of this server for users. */
export const serverEvents = ({ client, logger, host, clock }: ServerEventsOptions): EventRecorder =>
  new EventRecorder({
    client,
    logger,
    host,
    clock: clock ?? client.clock,
    component: 'longshore-server',
  });
