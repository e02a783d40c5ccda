# The operator's image. CI has no container engine and does not build it; its tests run the same files in an image made
# by dev/devcluster.
#   docker build -t <registry>/specserve/operator:0.1.0 .
FROM python:3.12-slim AS dependencies
COPY locks/operator.txt /
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r /operator.txt

FROM python:3.12-slim
COPY --from=dependencies /venv /venv
COPY operator/specserve_operator /opt/specserve/specserve_operator
# The operator publishes this package to its profiling Jobs.
COPY profiler_job/specserve_profiler /opt/specserve/specserve_profiler
ENV PATH=/venv/bin:$PATH PYTHONPATH=/opt/specserve PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python", "-m", "specserve_operator"]
