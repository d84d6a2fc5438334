import { type Job, readFile, type Told } from "./reading.js";

const worker = new Worker("/worker.js", { type: "module" });

function readInWorker(job: Job): Promise<Told> {
  return new Promise((done, fail) => {
    worker.onmessage = ({ data }) => (data.error ? fail(new Error(data.error)) : done(data.told));
    worker.postMessage({ ...job, url: new URL(job.url, location.href).href });
  });
}

/** Reads files one after the other. */
async function readAll(jobs: Job[], inWorker: boolean): Promise<Told[]> {
  const told = [];
  for (const job of jobs) {
    try {
      const url = new URL(job.url, location.href).href;
      told.push(await (inWorker ? readInWorker : readFile)({ ...job, url }));
    } catch (error) {
      throw new Error(`${job.kind} ${job.url} from a ${job.from}: ${error}`);
    }
  }
  return told;
}

Object.assign(globalThis, { readAll });
